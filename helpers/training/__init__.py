"""The one training loop; the twin that judges every strategy; the farm that runs many trainings."""
