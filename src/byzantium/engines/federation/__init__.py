"""What the engines of federations share: rounds, the rule's part in them, and the folder."""
