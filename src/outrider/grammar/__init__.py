"""Structured output: grammars, compiled for one tokenizer, and which tokens they allow after a text."""

from outrider.grammar.compiler import CompiledGrammar, GrammarCompiler, compiled
from outrider.grammar.spec import Grammar
from outrider.grammar.state import FREE, Allowed, GrammarEnded, GrammarState

__all__ = [
    "FREE",
    "Allowed",
    "CompiledGrammar",
    "Grammar",
    "GrammarCompiler",
    "GrammarEnded",
    "GrammarState",
    "compiled",
]
