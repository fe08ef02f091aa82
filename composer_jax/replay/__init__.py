"""Groups of trajectories between actors and learner, and their records."""
