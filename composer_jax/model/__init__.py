"""Parameters and forward pass of the decoder, one definition for all users.

Plain functions over a pytree of arrays, not modules: the learner
differentiates them, the sampler calls them with a cache, and both read the
same lines. On a CPU a call costs about what a linen module costs and a fraction
of a stateful one, and nothing needs to be split, merged or bound before it can
be published, sharded or compared. flax supplies the pytree dataclasses.
"""
