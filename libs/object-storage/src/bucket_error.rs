//! Why a model or a dataset in a bucket cannot be downloaded, with the next step.

use crate::open::OpenError;
use grpo_hub::HubError;
use grpo_hub::model::Lacking;

/// Maximum length of a server's text in a message, in characters.
const LONGEST: usize = 300;

/// Each message names the field, the URL, the cause, and the next step.
#[derive(Debug, thiserror::Error)]
pub enum BucketError {
    #[error("{field}: {source}")]
    Open { field: &'static str, source: OpenError },
    #[error("{field}: {url} was not found: {cause}; check bucket and path in its url, and its endpoint")]
    Missing {
        field: &'static str,
        url: String,
        cause: String,
    },
    #[error(
        "{field}: access to {url} was denied: {cause}; use keys in its credentialsSecretRef that may list and read it"
    )]
    Denied {
        field: &'static str,
        url: String,
        cause: String,
    },
    #[error("{field}: the server refused the request for {url}: {cause}; check its url, endpoint and region")]
    Refused {
        field: &'static str,
        url: String,
        cause: String,
    },
    #[error("{field}: no answer for {url}: {cause}")]
    Unreachable {
        field: &'static str,
        url: String,
        cause: String,
    },
    #[error(
        "{field}: object {path} of {url} was replaced or deleted after it was listed; restore its bytes, or make a new run, \
which lists the objects again"
    )]
    Changed {
        field: &'static str,
        url: String,
        path: String,
    },
    #[error(
        "{field}: {url} has more than {} objects; set its url to the folder of one model",
        crate::MOST_OBJECTS
    )]
    Many { field: &'static str, url: String },
    #[error("{field}: {url} has an object whose name is not a path below it: {name}; rename or delete the object")]
    Name {
        field: &'static str,
        url: String,
        name: String,
    },
    #[error("{field}: the server names no ETag for object {object} of {url}; use a server that does")]
    NoTag {
        field: &'static str,
        url: String,
        object: String,
    },
    #[error("{field}: {url} {}", missing_file(*.objects, *.lacking))]
    Lacking {
        field: &'static str,
        url: String,
        objects: usize,
        lacking: Lacking,
    },
}

fn missing_file(objects: usize, lacking: Lacking) -> &'static str {
    match (objects, lacking) {
        (0, _) => "has no objects; check bucket and path in its url",
        (_, Lacking::Configuration) => "has no config.json; set its url to the folder that holds config.json",
        (_, Lacking::Weights) => "has no weights in safetensors; upload *.safetensors beside config.json",
    }
}

impl BucketError {
    /// Whether a retry may succeed: the server or the network has a problem.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Open { source, .. } => source.is_transient(),
            Self::Unreachable { .. } => true,
            _ => false,
        }
    }

    pub(crate) fn into_source(self) -> HubError {
        HubError::Source {
            is_transient: self.is_transient(),
            source: Box::new(self),
        }
    }
}

impl From<BucketError> for HubError {
    fn from(error: BucketError) -> Self {
        error.into_source()
    }
}

/// A failed request.
pub(crate) struct Failed {
    pub field: &'static str,
    pub url: String,
    pub error: object_store::Error,
}

impl From<Failed> for BucketError {
    fn from(Failed { field, url, error }: Failed) -> Self {
        use object_store::Error;
        let text = error.to_string();
        let (status, cause) = (status(&text), words(&text));
        match (&error, status) {
            (Error::NotFound { .. }, _) | (_, Some(404)) => Self::Missing { field, url, cause },
            (Error::PermissionDenied { .. } | Error::Unauthenticated { .. }, _) | (_, Some(401 | 403)) => {
                Self::Denied { field, url, cause }
            }
            (Error::InvalidPath { .. }, _) => Self::Name {
                field,
                url,
                name: cause,
            },
            (_, Some(408 | 429)) => Self::Unreachable { field, url, cause },
            (_, Some(300..=499)) => Self::Refused { field, url, cause },
            _ => Self::Unreachable { field, url, cause },
        }
    }
}

/// Whether a server refused the caller or the request: a retry gets the same answer.
pub fn is_refusal(error: &object_store::Error) -> bool {
    use object_store::Error;
    let is_named = matches!(
        error,
        Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::NotFound { .. }
            | Error::NotSupported { .. }
    );
    is_named || matches!(status(&error.to_string()), Some(401 | 403 | 404))
}

/// The text before an answer's status in an error.
const STATUS: &str = "status code: ";

/// The HTTP status in an error's text. `object_store` does not export its type for it, and a listing that fails with
/// 403 or 404 is a generic error.
fn status(text: &str) -> Option<u16> {
    let (_, after) = text.split_once(STATUS)?;
    after.get(..3)?.parse().ok()
}

/// An error's text with only code and message of the server's XML: its other elements repeat the access key.
fn words(text: &str) -> String {
    let answer = text.split_once(STATUS).map_or(text, |(_, answer)| answer);
    let (before, xml) = answer.split_once('<').unwrap_or((answer, ""));
    let element = |name: &str| {
        let (_, after) = xml.split_once(&format!("<{name}>"))?;
        after.split_once("</").map(|(text, _)| text.trim())
    };
    let told = [element("Code"), element("Message")];
    let told: Vec<&str> = told.into_iter().flatten().collect();
    let all = format!("{}{}", before, told.join(": "));
    all.chars()
        .take(LONGEST)
        .collect::<String>()
        .trim_end_matches([' ', ':', '.'])
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_terminal_and_trouble_of_the_server_is_not() {
        for (status, is_transient) in [
            (301, false),
            (400, false),
            (401, false),
            (403, false),
            (404, false),
            (408, true),
            (429, true),
            (500, true),
            (503, true),
        ] {
            let source = format!("Server returned non-2xx status code: {status} Some: ").into();
            let error = object_store::Error::Generic { store: "S3", source };
            let (field, url) = ("model.objectStore", "s3://models/qwen".to_owned());
            let error = BucketError::from(Failed { field, url, error });
            assert_eq!(error.is_transient(), is_transient, "{error}");
        }
        let listing = |status: u16| object_store::Error::Generic {
            store: "S3",
            source: format!("Server returned non-2xx status code: {status} Some: ").into(),
        };
        assert_eq!(
            [403, 404, 409, 503].map(|status| is_refusal(&listing(status))),
            [true, true, false, false]
        );
        let source = "connection refused".into();
        let error = object_store::Error::Generic { store: "S3", source };
        let (field, url) = ("model.objectStore", "s3://models/qwen".to_owned());
        assert!(BucketError::from(Failed { field, url, error }).is_transient());
    }

    #[test]
    fn a_servers_answer_is_told_by_its_code_and_without_the_access_key() {
        let text = "Generic S3 error: Error performing GET http://s3/b in 1ms - Server returned non-2xx status code: 403 \
                    Forbidden: <?xml version=\"1.0\"?><Error><Code>InvalidAccessKeyId</Code><Message>No such key.</Message>\
                    <AWSAccessKeyId>AKIA1234</AWSAccessKeyId></Error>";
        assert_eq!(status(text), Some(403));
        let told = words(text);
        assert_eq!(told, "403 Forbidden: InvalidAccessKeyId: No such key");
    }
}
