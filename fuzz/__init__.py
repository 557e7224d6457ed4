"""The laws, tried at random: `generate.py` draws cases, `properties.py` judges them, `shrink.py` makes a failing one small, `run.py` drives."""
