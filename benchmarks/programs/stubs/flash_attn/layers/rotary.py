apply_rotary_emb = None
