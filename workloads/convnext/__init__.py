"""ConvNeXt on Ray Train. Everything but `train` is plain torch and never imports Ray."""
