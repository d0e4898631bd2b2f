"""Muon: an optimizer that orthogonalises whole matrices, and so decides the layout.

rule     the update rule: Muon for hidden matrices, AdamW for the rest
rows     rows of whole tensors: no matrix is cut
owners   data parallel, each matrix orthogonalised on one rank; ZeRO 1 by whole tensors
"""
