"""What is known of Neuron's compiler, and the way to it: rules, error codes, HLO modules, the call.

Nothing in here has run through Neuron's compiler: it follows the vendor's documents, and its tests
follow them too. What comes from elsewhere is marked where it stands.
"""
