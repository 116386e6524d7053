"""From the experiment to what is measured in which order, and what is refused before anything is started."""
