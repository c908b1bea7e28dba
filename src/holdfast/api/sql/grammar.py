"""The SQL that is read: Spark's, as sqlglot knows it, with where everything stands in the text; and what streams add.

Added to it are Spark's ``WATERMARK … DELAY OF …`` behind a table and ``WINDOWING 300 SECONDS [EVERY 30 SECONDS]`` of
ELF's query language. In the dialect ``elf`` strings stand in backquotes, as that paper prints them, and ``FROM *`` is
everything that the job reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]

from holdfast.api.sql.text import SPAN, Node, Text
from holdfast.errors import PlanError

WATERMARK, WINDOWING, DECLARED = "watermark", "windowing", "declared"
ALL = "*"
DIALECTS = ("spark", "elf")
_TOLD = ("description", "line", "col", "highlight")
_CLAUSES = ("WATERMARK", "WINDOWING")
_SPANNED = (
    "_parse_expression",
    "_parse_assignment",
    "_parse_disjunction",
    "_parse_equality",
    "_parse_comparison",
    "_parse_range",
    "_parse_bitwise",
    "_parse_unary",
    "_parse_column",
    "_parse_function",
    "_parse_ordered",
    "_parse_interval",
    "_parse_table",
    "_parse_select",
    "_parse_join",
    "_parse_limit",
    "_parse_group",
    "_parse_order",
    "_parse_sort",
    "_parse_where",
    "_parse_having",
    "_parse_statement",
)


@dataclass
class Declared:
    """What CREATE STREAM or CREATE TABLE says of rows that come from, or go, somewhere."""

    columns: list[str] = field(default_factory=list)
    """Each as Spark's DDL has it."""
    watermark: tuple[Node, Node] | None = None
    """A column, and the expression that is behind it."""
    options: dict[str, str] = field(default_factory=dict)
    partition_by: list[str] = field(default_factory=list)
    query: Node | None = None


class HoldfastStreams(Spark):
    """Spark's SQL with ``window`` as the function that it is there, and clauses about time."""

    class Tokenizer(Spark.Tokenizer):
        KEYWORDS = {  # noqa: RUF012 - as sqlglot has it
            word: kind for word, kind in Spark.Tokenizer.KEYWORDS.items() if kind is not TokenType.WINDOW
        }

    class Parser(Spark.Parser):  # type: ignore[misc, valid-type]
        def _spanned(self, parse: Callable[..., Any], *given: Any, **named: Any) -> Any:
            first = self._curr
            node = parse(*given, **named)
            last = self._prev
            if isinstance(node, Node) and first is not None and last is not None and last.end >= first.start:
                node.meta[SPAN] = (first.start, last.end + 1)
            return node

        def _parse_table_alias(self, *given: Any, **named: Any) -> Any:
            if self._curr is not None and self._curr.text.upper() in _CLAUSES:
                return None
            return super()._parse_table_alias(*given, **named)

        def _parse_table_parts(self, *given: Any, **named: Any) -> Any:
            if self._match(TokenType.STAR):
                return exp.Table(this=exp.to_identifier(ALL, quoted=True))
            return super()._parse_table_parts(*given, **named)

        def _parse_table(self, *given: Any, **named: Any) -> Any:
            table = self._spanned(super()._parse_table, *given, **named)
            if isinstance(table, Node) and self._match_text_seq("WATERMARK"):
                column = self._parse_column()
                if not self._match_text_seq("DELAY", "OF"):
                    self.raise_error("Expected DELAY OF INTERVAL … behind the column of WATERMARK")
                table.meta[WATERMARK] = (column, self._parse_interval())
                if not table.alias and (alias := self._parse_table_alias()):
                    table.set("alias", alias)
            return table

        def _parse_query_modifiers(self, this: Any) -> Any:
            this = super()._parse_query_modifiers(this)
            if isinstance(this, exp.Select) and self._curr is not None and self._match_text_seq("WINDOWING"):
                first = self._prev.start
                size = self._span_of_time()
                every = self._span_of_time() if self._match_text_seq("EVERY") else None
                this.meta[WINDOWING] = ((first, self._prev.end + 1), size, every)
                this = super()._parse_query_modifiers(this)
            return this

        def _parse_create(self) -> Any:
            if self._curr is not None and self._curr.text.upper() in ("STREAM", "TABLE"):
                kind = self._advance_text().upper()
                node = exp.Create(this=exp.Table(this=self._parse_id_var()), kind=kind)
                node.meta[DECLARED] = self._declared()
                return node
            return super()._parse_create()

        def _declared(self) -> Declared:
            found = Declared()
            if self._match(TokenType.L_PAREN):
                while True:
                    if self._match_text_seq("WATERMARK", "FOR"):
                        column = self._parse_column()
                        self._match(TokenType.ALIAS)
                        found.watermark = (column, self._parse_assignment())
                    else:
                        found.columns.append(self._raw())
                    if not self._match(TokenType.COMMA):
                        break
                self._match_r_paren()
            while self._curr is not None:
                if self._match_text_seq("USING"):
                    found.options["format"] = self._advance_text()
                elif self._match_text_seq("OPTIONS") or self._match(TokenType.WITH):
                    found.options |= self._options()
                elif self._match_text_seq("PARTITIONED", "BY"):
                    found.partition_by = [one.name for one in self._parse_wrapped_csv(self._parse_id_var)]
                elif self._match_text_seq("LOCATION"):
                    found.options["path"] = self._advance_text()
                elif self._match(TokenType.ALIAS):
                    found.query = self._parse_select()
                else:
                    break
            return found

        def _raw(self) -> str:
            """The characters up to the comma or bracket that ends this."""
            first, depth = self._curr, 0
            while self._curr is not None:
                kind = self._curr.token_type
                if depth == 0 and kind in (TokenType.COMMA, TokenType.R_PAREN):
                    break
                depth += (kind in (TokenType.L_PAREN, TokenType.LT)) - (kind in (TokenType.R_PAREN, TokenType.GT))
                self._advance()
            return str(self.sql[first.start : self._prev.end + 1]) if first is not None else ""

        def _options(self) -> dict[str, str]:
            """``('path' = 'in', header true, kafka.bootstrap.servers = 'localhost')``"""
            found = {}
            if not self._match(TokenType.L_PAREN):
                self.raise_error("Expected options in brackets: ('path' = '…')")
            while self._curr is not None and self._curr.token_type is not TokenType.R_PAREN:
                name = self._advance_text()
                while self._match(TokenType.DOT):
                    name = f"{name}.{self._advance_text()}"
                self._match(TokenType.EQ)
                found[name] = self._advance_text()
                if not self._match(TokenType.COMMA):
                    break
            self._match_r_paren()
            return found

        def _span_of_time(self) -> str:
            number, unit = self._advance_text(), self._advance_text()
            if not re.fullmatch(r"\d+", number) or not unit.isalpha():
                self.raise_error("Expected a number and a unit of time, as in WINDOWING 300 SECONDS")
            return f"{number} {unit}"

        def _advance_text(self) -> str:
            said = self._curr.text if self._curr is not None else ""
            if self._curr is not None:
                self._advance()
            return said


def _noted(name: str) -> Callable[..., Any]:
    def parse(self: Any, *given: Any, **named: Any) -> Any:
        return self._spanned(getattr(super(HoldfastStreams.Parser, self), name), *given, **named)

    return parse


for _name in _SPANNED:
    if _name not in vars(HoldfastStreams.Parser):
        setattr(HoldfastStreams.Parser, _name, _noted(_name))


def parsed(text: str, dialect: str = "spark") -> tuple[Text, list[Node]]:
    """The statements of a text."""
    if dialect not in DIALECTS:
        raise PlanError(f"There is no SQL dialect '{dialect}'.", todo=f"Use one of {', '.join(DIALECTS)}.")
    if not isinstance(text, str) or not text.strip():
        raise PlanError("SQL: there is no text.", safe="Nothing was started.", todo="Write a SELECT.")
    given = Text(text)
    if dialect == "elf":
        given = Text(_with_quotes(given))
    spoken = HoldfastStreams()
    try:
        found = spoken.parser().parse(spoken.tokenize(given.text), given.text)
    except ParseError as error:
        raise _unread(given, error) from None
    except IndexError:  # sqlglot looks further than there is text
        place = (max(0, len(given.text.rstrip()) - 1), len(given.text.rstrip()))
        raise given.wrong(place, "the text ends too early.", "Write the rest of it.") from None
    except TokenError as error:
        raise given.wrong(
            None, f"the text cannot be cut into words: {str(error).splitlines()[0]}", "Close what is open: quotes, say."
        ) from None
    return given, [one for one in found if one is not None]


def _with_quotes(given: Text) -> str:
    """Strings in backquotes as Spark has them. Nothing moves: both quotes are one character."""

    def quoted(found: re.Match[str]) -> str:
        if "'" in found[1]:
            raise given.wrong(found.span(), "a string of dialect 'elf' cannot hold a quote.", "Use dialect='spark'.")
        return f"'{found[1]}'"

    return re.sub(r"`([^`]*)`", quoted, given.text)


def _unread(given: Text, error: ParseError) -> PlanError:
    """sqlglot tells the line, the column behind the word and the word."""
    told = error.errors[0] if error.errors else {}
    what, line, column, word = (told.get(name) for name in _TOLD)
    place = None
    if line and column and word is not None:
        before = given.text.splitlines(keepends=True)[: int(str(line)) - 1]
        end = sum(map(len, before)) + int(str(column))
        place = (max(0, end - max(1, len(str(word)))), end)
    said = str(what or error).splitlines()[0].rstrip(".")
    return given.wrong(place, f"the text is not understood: {said}.", "Correct it there, or just before.")
