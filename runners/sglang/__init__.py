"""All SGLang knowledge, in one place and pure: no process, container, GPU or network is touched here.

What a version of SGLang takes (`version`, `known`, `moved`), what a server config becomes (`block_size`, `flags`,
`environment`), what SGLang would refuse (`rules`, `state_rules`, `checkpoint_rules`), and how its words are read
(`ready`, `failures`, `identity`, `help_check`). docs/reference/sglang.md has the facts; they were read from the
wheels of 0.5.16 to 0.5.23 and from recorded servers.
"""
