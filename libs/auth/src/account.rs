//! Service accounts: the names in tokens, and the names that a service allows.

use std::fmt;
use std::str::FromStr;

/// A service account of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceAccount {
    pub namespace: String,
    pub name: String,
}

impl ServiceAccount {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The claim `sub` of the account's tokens.
    pub fn subject(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }
}

impl fmt::Display for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One account of a namespace, or all accounts with a suffix: `team/demo-driver`, `team/*-driver`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedAccount {
    namespace: String,
    name: Name,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    Is(String),
    EndsWith(String),
}

/// An account is given as `namespace/name` or `namespace/*-suffix`.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no service account; write namespace/name, or namespace/*-suffix for all names with that end")]
pub struct NoAccount(String);

impl AllowedAccount {
    pub fn allows(&self, account: &ServiceAccount) -> bool {
        self.namespace == account.namespace
            && match &self.name {
                Name::Is(name) => *name == account.name,
                Name::EndsWith(end) => account.name.len() > end.len() && account.name.ends_with(end.as_str()),
            }
    }
}

impl From<ServiceAccount> for AllowedAccount {
    fn from(account: ServiceAccount) -> Self {
        Self {
            namespace: account.namespace,
            name: Name::Is(account.name),
        }
    }
}

impl FromStr for AllowedAccount {
    type Err = NoAccount;

    fn from_str(text: &str) -> Result<Self, NoAccount> {
        let wrong = || NoAccount(text.to_owned());
        let (namespace, name) = text.split_once('/').ok_or_else(wrong)?;
        let is_name = |text: &str| {
            let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
            !text.is_empty() && text.bytes().all(allowed)
        };
        let parsed = match name.strip_prefix('*') {
            // A pattern for all accounts of a namespace is refused.
            Some(end) if end.len() > 1 && is_name(end) => Name::EndsWith(end.to_owned()),
            None if is_name(name) => Name::Is(name.to_owned()),
            _ => return Err(wrong()),
        };
        match is_name(namespace) {
            true => Ok(Self {
                namespace: namespace.to_owned(),
                name: parsed,
            }),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for AllowedAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Name::Is(name) => write!(f, "{}/{name}", self.namespace),
            Name::EndsWith(end) => write!(f, "{}/*{end}", self.namespace),
        }
    }
}

#[cfg(test)]
mod tests;
