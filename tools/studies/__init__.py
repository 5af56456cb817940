"""Studies that the README reports: attentions in one pyramid, image sizes, gradients of Newton's inverse."""
