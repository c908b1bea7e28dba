"""Spark's own expressions, resolved: the few classes that they are built of, and what can be asked of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, SparkSession

Expr = Any
"""An expression of Spark's, resolved."""


class Catalyst:
    """The few classes of Spark's that expressions are built of."""

    def __init__(self, spark: SparkSession) -> None:
        gateway: Any = spark.sparkContext._gateway
        self._client = gateway._gateway_client
        self._collapse = getattr(self._class("org.apache.spark.sql.catalyst.optimizer.CollapseProject$"), "MODULE$")
        self._literals = self._class("org.apache.spark.sql.catalyst.expressions.Literal")
        self._false = self._literals.create(False, self._class("org.apache.spark.sql.types.DataTypes").BooleanType)
        patterns = self._class("org.apache.spark.sql.catalyst.trees.TreePattern")
        self._foreign = [patterns.PYTHON_UDF(), patterns.PLAN_EXPRESSION()]

    def _class(self, name: str) -> Any:
        return JavaClass(name, self._client)

    def _seq(self, *items: Any) -> Any:
        return self._class("org.apache.spark.api.python.PythonUtils").toSeq(list(items))

    def guardable(self, expression: Expr) -> bool:
        """Whether it gives the same however often it is computed, and is not computed where a condition forbids it."""
        return expression.deterministic() and not any(expression.containsPattern(one) for one in self._foreign)

    def renamed(self, expression: Expr, renames: Sequence[Expr]) -> Expr:
        """With what the aliases stand for in place of their names."""
        if not renames:
            return expression
        return self._collapse.replaceAlias(expression, self._collapse.getAliasMap(self._seq(*renames)))

    def true(self, condition: Expr) -> Expr:
        """False where it is null."""
        return self._class("org.apache.spark.sql.catalyst.expressions.Coalesce")(self._seq(condition, self._false))

    def both(self, one: Expr, other: Expr) -> Expr:
        """The other is not even looked at where the one is false."""
        return self._class("org.apache.spark.sql.catalyst.expressions.If")(one, other, self._false)

    def where(self, condition: Expr, value: Expr) -> Expr:
        nothing = self._literals.create(None, value.dataType())
        return self._class("org.apache.spark.sql.catalyst.expressions.If")(condition, value, nothing)

    def one_of(self, value: Expr, literals: Sequence[Expr]) -> Expr:
        return self._class("org.apache.spark.sql.catalyst.expressions.In")(value, self._seq(*literals))

    def alias(self, value: Expr, name: str, number: Any = None) -> Expr:
        number = number or self._class("org.apache.spark.sql.catalyst.expressions.NamedExpression").newExprId()
        nothing, made = (
            self._class("scala.Option").empty(),
            self._class("org.apache.spark.sql.catalyst.expressions.Alias"),
        )
        return made(value, name, number, self._seq(), nothing, self._seq())

    def named(self, name: str) -> Expr:
        """Whatever has that name where it is used."""
        return self._class("org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute").quoted(name)

    def with_child(self, alias: Expr, child: Expr) -> Expr:
        return alias.withNewChildren(self._seq(child))

    def column(self, expression: Expr) -> Column:
        return Column(self._class("org.apache.spark.sql.classic.ExpressionUtils").column(expression))

    def list(self, columns: Iterable[Column]) -> Any:
        """As Spark takes them: made once, it costs nothing to give it again."""
        return self._seq(*(one._jc for one in columns))


def value_of(expression: Expr) -> int | str | None:
    """Its value; None: it has none, or it is null. A number that Spark had to cast is one too."""
    plain = expression.nodeName() == "Literal" or (
        expression.nodeName() == "Cast" and expression.child().nodeName() == "Literal"
    )
    try:
        value = expression.eval(None) if plain else None
    except Py4JJavaError:  # one that does not fit: it fails where Spark computes it
        return None
    return value if value is None or isinstance(value, int) else str(value.toString())


def number_of(attribute: Expr) -> int:
    return int(attribute.exprId().id())
