"""A reader of the pseudo-code's language: text to a tree of functions.

Statements are assignments, ``if``, ``for``, ``declare``, ``break`` and lambdas; expressions are C's, with bit ranges
(``x[7 : 0]``), types as suffixes (``x.f32``), casts (``64'U(x)``) and joined bits (``{ high, low }``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from gfx950emu.pcode.operators import binary, cast, join, number, unary
from gfx950emu.pcode.targets import Function, Joined, Scope, Target, list_array
from gfx950emu.pcode.values import Unsupported, Value, integer

Statement = Callable[["Scope"], None]
_TOKEN = re.compile(
    r"\s*(?:(?P<cast>\d+'[UIFB](?!\w))"
    r"|(?P<number>\d+'(?:0x[0-9a-fA-F]+|\d+(?:\.\d+)?)[A-Z]*|0x[0-9a-fA-F]+[UL]*|\d+\.\d+F?|\d+[UL]*F?)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<operator>\*\*|<<|>>|<=|>=|==|!=|<>|&&|\|\||[-+*/|&^]=|[-+*/&|^~!<>=?:()\[\]{},;.]))"
)
_LEVELS: Final = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!=", "<>"), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/"), ("**",),
)  # fmt: skip
_END: Final = ("endif", "endfor", "else", "elsif")


class _Break(Exception):
    pass


class _Return(Exception):
    def __init__(self, value: Value) -> None:
        super().__init__()
        self.value = value


def _break(scope: Scope) -> None:
    raise _Break


def _returned(body: Statement) -> Function:
    def value(scope: Scope) -> Value:
        try:
            body(scope)
        except _Return as done:
            return done.value
        raise Unsupported("a lambda that returns nothing")

    return value


def tokens_of(text: str) -> list[tuple[str, str]]:
    """Split a text, without its comments."""
    text = re.sub(r"//[^\n]*", "", text).rstrip()
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise Unsupported(f"{text[at : at + 20]!r}")
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return found


class Reader:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self.tokens, self.at = tokens_of(text), 0

    def program(self) -> Statement:
        """Read everything."""
        body = self._block()
        if self.at < len(self.tokens):
            raise Unsupported(f"{self._peek()!r}")
        return body

    def _peek(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.tokens[place][1] if place < len(self.tokens) else ""

    def _next(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1][1]

    def _take(self, text: str) -> bool:
        if self._peek() == text:
            self.at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise Unsupported(f"{self._peek()!r} where {text!r} is wanted")

    def _block(self) -> Statement:
        steps: list[Statement] = []
        while self.at < len(self.tokens) and self._peek() not in (*_END, ")"):
            if not self._take(";"):
                steps.append(self._statement())

        def run(scope: Scope) -> None:
            for step in steps:
                step(scope)

        return run

    def _statement(self) -> Statement:
        if self._take("if"):
            return self._if()
        if self._take("for"):
            return self._for()
        if self._take("declare"):
            return self._declare()
        if self._take("break"):
            return _break
        if self._take("return"):
            value = self._expression()

            def give(scope: Scope) -> None:
                raise _Return(value(scope))

            return give
        if self._peek(1) == "=" and self._peek(2) == "lambda":
            return self._lambda()
        return self._assignment()

    def _if(self) -> Statement:
        branches: list[tuple[Function, Statement]] = []
        otherwise: Statement | None = None
        while True:
            condition = self._expression()
            self._expect("then")
            branches.append((condition, self._block()))
            if self._take("elsif"):
                continue
            if self._take("else"):
                otherwise = self._block()
            self._expect("endif")
            break

        def run(scope: Scope) -> None:
            for condition, body in branches:
                if condition(scope):
                    return body(scope)
            if otherwise is not None:
                otherwise(scope)
            return None

        return run

    def _for(self) -> Statement:
        name = self._next()
        self._expect("in")
        first = self._expression()
        self._expect(":")
        last = self._expression()
        self._expect("do")
        body = self._block()
        self._expect("endfor")

        def run(scope: Scope) -> None:
            for count in range(int(first(scope).x), int(last(scope).x) + 1):
                scope.names[name] = integer("i", 32, count)
                try:
                    body(scope)
                except _Break:
                    break

        return run

    def _declare(self) -> Statement:
        name = self._next()
        self._expect(":")
        width = int(self._next().partition("'")[0])
        is_array = self._take("[")
        if is_array:
            self._expression()
            self._expect("]")

        def run(scope: Scope) -> None:
            if is_array:
                scope.arrays[name] = list_array(width)
            else:
                scope.names[name] = Value("b", width, 0)

        return run

    def _lambda(self) -> Statement:
        name = self._next()
        self.at += 2
        self._expect("(")
        parameters = []
        while not self._take(")"):
            parameters.append(self._next())
            self._take(",")
        self._expect("(")
        start = self.at
        try:
            value = self._expression()
            self._expect(")")
        except Unsupported:
            self.at = start
            body = self._block()
            self._expect(")")
            value = _returned(body)

        def run(scope: Scope) -> None:
            def called(*arguments: Value) -> Value:
                inner = {**scope.names, **dict(zip(parameters, arguments, strict=True))}
                return value(Scope(inner, scope.call, scope.arrays))

            scope.names[name] = called

        return run

    def _assignment(self) -> Statement:
        targets, operator = [self._target()], self._next()
        if operator not in ("=", "+=", "-=", "|=", "&=", "^="):
            raise Unsupported(f"{operator!r} where an assignment is wanted")
        while True:
            start = self.at
            try:
                target = self._target()
                self._expect("=")
                targets.append(target)
            except Unsupported:
                self.at = start
                break
        value = self._expression()
        if operator != "=":
            old, change = targets[0].read, value
            value = lambda scope: binary(operator[0], old(scope), change(scope))  # noqa: E731

        def run(scope: Scope) -> None:
            x = value(scope)
            for target in reversed(targets):
                target.write(scope, x)

        return run

    def _target(self) -> Target:
        if self._take("{"):
            parts = [self._target()]
            while self._take(","):
                parts.append(self._target())
            self._expect("}")
            return Joined(parts)
        if self.at >= len(self.tokens) or self.tokens[self.at][0] != "name":
            raise Unsupported(f"{self._peek()!r} where a name is wanted")
        name = self._next()
        return self._suffixes(Target(name))

    def _suffixes(self, target: Target) -> Target:
        while True:
            if self._take("["):
                high = self._expression()
                low = self._expression() if self._take(":") else None
                self._expect("]")
                target.steps.append(("range", high, low))
            elif self._peek() == "." and self.at + 1 < len(self.tokens):
                self.at += 1
                target.steps.append(("type", self._next(), None))
            else:
                return target

    # ------------------------------------------------------------ expressions
    def _expression(self) -> Function:
        condition = self._level(0)
        if not self._take("?"):
            return condition
        yes = self._expression()
        self._expect(":")
        no = self._expression()
        return lambda scope: yes(scope) if condition(scope) else no(scope)

    def _level(self, level: int) -> Function:
        if level == len(_LEVELS):
            return self._unary()
        left = self._level(level + 1)
        while self._peek() in _LEVELS[level]:
            operator = self._next()
            has_sign = operator == "==" and self._peek() in ("+", "-") and self._peek(1) == "0.0"
            left = _binary("is" if has_sign else operator, left, self._level(level + 1))
        return left

    def _unary(self) -> Function:
        if self._peek() in ("-", "+", "~", "!"):
            operator, inner = self._next(), self._unary()
            return lambda scope: unary(operator, inner(scope))
        return self._postfix()

    def _postfix(self) -> Function:
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        self.at += 1
        if kind == "number":
            constant = number(text)
            return self._read_suffixes(lambda scope: constant)
        if kind == "cast":
            self._expect("(")
            inner = self._expression()
            self._expect(")")
            width, to = int(text[:-2]), text[-1].lower()
            return self._read_suffixes(lambda scope: cast(to, width, inner(scope)))
        if text == "(":
            inner = self._expression()
            self._expect(")")
            return self._read_suffixes(inner)
        if text == "{":
            parts = [self._expression()]
            while self._take(","):
                parts.append(self._expression())
            self._expect("}")
            return self._read_suffixes(lambda scope: join([part(scope) for part in parts]))
        if kind != "name":
            raise Unsupported(f"{text!r} where a value is wanted")
        if self._peek() == "(":
            return self._read_suffixes(self._call(text))
        return self._suffixes(Target(text)).read

    def _call(self, name: str) -> Function:
        self._expect("(")
        arguments = []
        while not self._take(")"):
            arguments.append(self._expression())
            self._take(",")

        def call(scope: Scope) -> Value:
            values = [argument(scope) for argument in arguments]
            own = scope.names.get(name)
            return own(*values) if callable(own) else scope.call(name, values)

        return call

    def _read_suffixes(self, value: Function) -> Function:
        target = self._suffixes(Target(""))
        return (lambda scope: target.part(scope, value(scope))) if target.steps else value


def _binary(operator: str, left: Function, right: Function) -> Function:
    if operator == "&&":
        return lambda scope: Value("u", 1, int(bool(left(scope)) and bool(right(scope))))
    if operator == "||":
        return lambda scope: Value("u", 1, int(bool(left(scope)) or bool(right(scope))))
    return lambda scope: binary(operator, left(scope), right(scope))
