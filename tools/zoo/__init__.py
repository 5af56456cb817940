"""What tools/check_zoo.py is made of: which configs, batches for them, one method, all of them, the table."""
