//! gds-driver
