"""One Spark for all its tests, the data of the bulk jobs, and the oracle that judges them."""
