//! Ends a rank at once whose training thread panics.
//!
//! An operation of `tch` panics when libtorch throws an exception, such as for a GPU whose memory is full. If the stack
//! unwound, the destructors of the process groups might wait for ranks that wait for this one: the others would then
//! report a hang, and the cause would be lost. So the process ends inside of the panic's hook. Its last line of output
//! is the cause, because a launcher and the kubelet pass that line on.

use std::any::Any;
use std::panic;

use grpo_native::end_now;

use crate::error::TrainError;

/// From now on a panic of the calling thread ends the process. Other threads' panics stay as they are.
pub fn end_at_panic() {
    let training = std::thread::current().id();
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        usual(info);
        if std::thread::current().id() == training {
            let error = TrainError::of_panic(words(info.payload()));
            tracing::error!(error = %error.in_words(), "the trainer ends");
            end_now(error.exit_code().into());
        }
    }));
}

fn words(payload: &dyn Any) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&'static str>().copied())
        .unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_with_a_text_of_either_kind_is_told() {
        let owned: Box<dyn Any + Send> = Box::new("made".to_owned());
        let fixed: Box<dyn Any + Send> = Box::new("fixed");
        let other: Box<dyn Any + Send> = Box::new(1);
        let told = [owned, fixed, other].map(|payload| words(payload.as_ref()).to_owned());
        assert_eq!(told, ["made", "fixed", "a panic without a message"]);
    }
}
