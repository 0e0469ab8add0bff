"""What each process's inbox takes."""

from __future__ import annotations

from ...runtime.step import StepPlan, StepResult
from .answers import Rejected, TextChunk, TokenBatch
from .grammars import ForgetGrammar, GrammarReady, PrepareGrammar
from .lifecycle import (
    ConfigureScheduler,
    ConfigureTokenizer,
    ConfigureWorker,
    Hello,
    Limits,
    Ready,
    Shutdown,
    StartFailed,
)
from .prefixes import LoadPrefix, PrefixLoaded
from .questions import (
    DetokenizeCall,
    FlushCall,
    Flushed,
    RenderCall,
    Rendered,
    Stats,
    StatsCall,
    TokenizeCall,
    Tokenized,
    TokenizerCall,
    TokenizerInfo,
)
from .requests import Abort, StopMatched, Submit, TokenizedRequest

ToTokenizer = (
    ConfigureTokenizer
    | Limits
    | Submit
    | Abort
    | TokenBatch
    | RenderCall
    | TokenizeCall
    | DetokenizeCall
    | TokenizerCall
    | Shutdown
)


ToScheduler = (
    ConfigureScheduler
    | TokenizedRequest
    | Abort
    | StopMatched
    | StepResult
    | GrammarReady
    | PrefixLoaded
    | StatsCall
    | FlushCall
    | Shutdown
)


ToWorker = ConfigureWorker | StepPlan | PrepareGrammar | ForgetGrammar | LoadPrefix | Shutdown


ToFront = Hello | Ready | StartFailed | TextChunk | Rejected | Rendered | Tokenized | TokenizerInfo | Stats | Flushed
