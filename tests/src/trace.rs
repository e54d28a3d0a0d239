//! System calls of a child, counted.
