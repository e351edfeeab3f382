//! The message of a caught panic.

use std::any::Any;

/// The message of a panic. A payload that is not text is leaked: dropping it could panic again.
pub fn panic_message(payload: Box<dyn Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => match other.downcast::<&'static str>() {
            Ok(text) => (*text).to_owned(),
            Err(other) => {
                std::mem::forget(other);
                "a panic without a message".to_owned()
            }
        },
    }
}
