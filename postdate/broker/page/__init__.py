"""The page on the web port: a view of `/postdate/v1` for people. It asks the public interface alone."""
