//! Scenarios that a random program would meet too rarely.
