//! gdsync
