"""The ring on real containers: nodes, pieces, saving and healing. Its protocol is ``ring.overlay``, which is pure.

For programs of users' own on it: ``Vertex``, and the ``BufferTree`` that one keeps its keys and values in.
"""

from holdfast.ring.buffers import BufferTree
from holdfast.ring.vertex import Vertex

__all__ = ["BufferTree", "Vertex"]
