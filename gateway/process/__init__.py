"""The processes of ``tollgate serve``: one that supervises, and the workers that serve."""
