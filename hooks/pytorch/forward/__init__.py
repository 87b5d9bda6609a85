"""Forward hooks on modules: outputs, inputs, losses and gradients of outputs."""
