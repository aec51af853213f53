layer_norm_fn = None
