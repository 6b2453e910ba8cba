"""The doors: in (admission, control plane) and out (calls with injected credentials). Owns ledger and blobs."""
