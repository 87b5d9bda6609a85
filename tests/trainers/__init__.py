"""Small trainers that run as processes of their own, and the checks of what they captured."""
