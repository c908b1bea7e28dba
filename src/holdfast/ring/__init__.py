"""The ring on real containers: nodes, pieces, saving and healing. Its protocol is ``ring.overlay``, which is pure."""
