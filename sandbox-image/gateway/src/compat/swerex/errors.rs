//! Errors in the form from which the client raises them again: it creates an exception of the named class.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use grpo_sandbox_protocol::{ErrorBody, ErrorCode};
use serde_json::{Value, json};

/// The status for a body that is an exception.
const EXCEPTION: u16 = 511;

pub struct SwerexError {
    status: StatusCode,
    body: Value,
}

/// Exception classes.
#[derive(Clone, Copy)]
pub enum Kind {
    General,
    CommandTimeout,
    NonZeroExitCode,
    BashSyntax,
    SessionExists,
    NoSession,
    ShellEnded,
    NoFile,
    Lookup,
    Os,
    Value,
}

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Self::General => "swerex.exceptions.SwerexException",
            Self::CommandTimeout => "swerex.exceptions.CommandTimeoutError",
            Self::NonZeroExitCode => "swerex.exceptions.NonZeroExitCodeError",
            Self::BashSyntax => "swerex.exceptions.BashIncorrectSyntaxError",
            Self::SessionExists => "swerex.exceptions.SessionExistsError",
            Self::NoSession => "swerex.exceptions.SessionDoesNotExistError",
            Self::ShellEnded => "pexpect.exceptions.EOF",
            Self::NoFile => "builtins.FileNotFoundError",
            Self::Lookup => "builtins.LookupError",
            Self::Os => "builtins.OSError",
            Self::Value => "builtins.ValueError",
        }
    }

    pub fn error(self, message: impl Into<String>) -> SwerexError {
        self.with(message, json!({}))
    }

    /// `extra` becomes the exception's `extra_info`.
    pub fn with(self, message: impl Into<String>, extra: Value) -> SwerexError {
        let (message, class): (String, _) = (message.into(), self.class());
        let told = json!({"message": message, "class_path": class, "traceback": "", "extra_info": extra});
        SwerexError {
            status: StatusCode::from_u16(EXCEPTION).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            body: json!({"swerexception": told}),
        }
    }
}

impl SwerexError {
    pub fn no_key() -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            body: json!({"detail": "the lease's id belongs into the path or into X-API-Key"}),
        }
    }

    pub fn unprocessable(why: &str) -> Self {
        Self {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            body: json!({"detail": why}),
        }
    }
}

impl From<ErrorBody> for SwerexError {
    fn from(error: ErrorBody) -> Self {
        let extra = json!({"code": error.code, "fault": error.fault, "cause": error.cause});
        let kind = match error.code {
            ErrorCode::NoSuchFile => Kind::NoFile,
            ErrorCode::BadRequest | ErrorCode::TooLarge => Kind::Value,
            _ => Kind::General,
        };
        kind.with(error.message, extra)
    }
}

impl IntoResponse for SwerexError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}
