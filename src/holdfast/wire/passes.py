"""What lets a process in at the doors of a run: the token, and, where doors are on a network, papers: a certificate of
its own by the authority of the run, with the key to it.

A pass is one string, because it goes where a token goes: in a container's settings, in a task of Spark's, in a file of
the user's. Without papers it is the token itself. Both ends show papers, before anything else is said: whoever opens a
door wants some that the authority has signed, and whoever knocks wants those of the process that is meant, by its name.
So neither a stranger who listens on a dead container's port nor another container hears the token.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.errors import TokenError
from holdfast.wire import locations

if TYPE_CHECKING:
    from holdfast.wire.messages import Address

MARK = "."
"""Between token and papers; neither has one in it."""


@dataclass(frozen=True)
class Papers:
    """All of them PEM."""

    certificate: str
    key: str = field(repr=False)
    authority: str


@dataclass(frozen=True)
class Pass:
    token: str = field(repr=False)
    papers: Papers | None = None

    @staticmethod
    def read(text: str) -> Pass:
        token, mark, papers = text.partition(MARK)
        try:
            return Pass(token, Papers(*json.loads(base64.urlsafe_b64decode(papers))) if mark else None)
        except (ValueError, TypeError):
            raise TokenError(
                "What was given as a token is none.",
                safe="Nothing was sent.",
                todo="Connect through run.state() or format('holdfast') as the user who started the job.",
            ) from None

    @property
    def text(self) -> str:
        if self.papers is None:
            return self.token
        shown = json.dumps([self.papers.certificate, self.papers.key, self.papers.authority])
        return self.token + MARK + base64.urlsafe_b64encode(shown.encode()).decode()

    def opening(self, host: str, name: str) -> tuple[str, dict[str, Any]]:
        """What Flight's server is told: where to listen, and whom to let in."""
        if self.papers is None or locations.is_folder(host):
            return locations.opening(host, name), {}
        mine = self.papers
        return locations.opening(host, name, secure=True), {
            "tls_certificates": [(mine.certificate, mine.key)],
            "verify_client": True,
            "root_certificates": mine.authority,
        }

    def calling(self, address: Address) -> dict[str, Any]:
        """What Flight's client is told: what to show, and who must answer."""
        if locations.is_secure(address.location):
            if self.papers is None:
                raise TokenError(
                    f"'{address.container}' asks for a certificate, and there is none with this token.",
                    safe="Nothing was sent.",
                    todo="Connect through run.state() or format('holdfast') as the user who started the job.",
                )
            mine = self.papers
            return {
                "tls_root_certs": mine.authority,
                "cert_chain": mine.certificate,
                "private_key": mine.key,
                "override_hostname": address.container,
            }
        if self.papers is not None and not locations.is_unix(address.location):
            raise TokenError(
                f"'{address.container}' is said to be at {address.location}, where anybody could listen: this job is "
                "under TLS.",
                safe="Nothing was sent.",
                todo="Look who wrote that address. Every start writes its own (owner/<n> in the store).",
            )
        return {}
