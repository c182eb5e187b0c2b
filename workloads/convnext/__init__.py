"""ConvNeXt on Ray Train. Everything but `run` is plain torch and never imports Ray."""
