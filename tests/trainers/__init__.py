"""Small trainers that run in their own processes, and checks of the tensors that they captured."""
