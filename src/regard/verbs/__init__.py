"""The mechanism of verbs: options, inputs, answers; a family declares its verbs with it."""
