"""SQL over streams: text in, the verbs of ``holdfast.api`` out, and nothing else.

sqlglot reads the text. What is an expression there is cut out of the user's own characters and handed on to Spark as it
stands, with the names of columns put in where the stream calls them otherwise: nothing is translated or optimised, so
an expression means what it means in Spark. What SQL says *around* expressions becomes verbs: ``GROUP BY`` is ``key_by``
and ``agg``, ``ORDER BY … LIMIT`` is ``top_k``. What cannot be a stream is refused at its place in the text, with what
to write instead.

sqlglot is imported in here alone, when the first text comes.
"""
