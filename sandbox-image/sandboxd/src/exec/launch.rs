//! The surroundings of a program: its user, folder and environment.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use grpo_sandbox_protocol::KEY_ENV;
use nix::fcntl::OFlag;

use super::tree::EXEC_ENV;

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Maximum bytes that are read of the tables of users and groups.
const TABLE: u64 = 1 << 20;

pub type Variables = BTreeMap<String, String>;

/// A user of the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub name: Option<String>,
    home: Option<String>,
}

/// Everything for the start of a program except its arguments.
#[derive(Clone, Debug)]
pub struct Surroundings {
    pub user: Option<User>,
    pub folder: Option<String>,
    pub variables: Variables,
}

impl Surroundings {
    /// The container's own environment without our key.
    pub fn own(user: Option<User>) -> Self {
        let mut variables: Variables = [("PATH", DEFAULT_PATH), ("HOME", "/root")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let own =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        variables.extend(own.filter(|(name, _)| name != KEY_ENV));
        if let Some(user) = &user {
            variables.insert("HOME".into(), user.home.clone().unwrap_or_else(|| "/".into()));
            let name = user.name.clone().unwrap_or_else(|| user.uid.to_string());
            variables.insert("USER".into(), name.clone());
            variables.insert("LOGNAME".into(), name);
        }
        Self {
            user,
            folder: None,
            variables,
        }
    }

    /// Adds the mark by which all descendants of the program are found.
    pub fn marked(mut self, id: &str) -> Self {
        self.variables.insert(EXEC_ENV.to_owned(), id.to_owned());
        self
    }

    pub fn command(&self, program: &str, arguments: &[String]) -> io::Result<Command> {
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(&self.variables);
        if let Some(folder) = &self.folder {
            // Checked here, because the system's error would read as if the program were missing.
            fs::metadata(folder).map_err(|error| io::Error::other(format!("folder {folder}: {error}")))?;
            command.current_dir(folder);
        }
        if let Some(user) = &self.user {
            command.uid(user.uid).gid(user.gid);
        }
        Ok(command)
    }

    /// `bash` if the image has it.
    pub fn shell(&self) -> &'static str {
        let path = self.variables.get("PATH").map_or(DEFAULT_PATH, String::as_str);
        let has_bash = path
            .split(':')
            .any(|folder| is_program(&Path::new(folder).join("bash")));
        if has_bash { "bash" } else { "sh" }
    }
}

/// Reads a file of the image, which the policy may have replaced: only a regular file, without waiting for a process
/// that has it open, and only up to [`TABLE`] bytes.
fn table(file: &Path) -> io::Result<String> {
    let file = File::options()
        .read(true)
        .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits())
        .open(file)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut text = Vec::new();
    file.take(TABLE).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn is_program(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

impl User {
    /// Finds a user by name or uid, each optionally with `:group` or `:gid`.
    pub fn find(wanted: &str) -> io::Result<Self> {
        let read = |file| table(Path::new(file)).unwrap_or_default();
        let found = Self::among(wanted, &read("/etc/passwd"), &read("/etc/group"));
        found.ok_or_else(|| io::Error::other(format!("this image has no user {wanted}")))
    }

    fn among(wanted: &str, users: &str, groups: &str) -> Option<Self> {
        let (wanted, group) = match wanted.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (wanted, None),
        };
        let number: Option<u32> = wanted.parse().ok();
        // name:password:uid:gid:comment:home:shell
        let known = users.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let (name, uid) = (*fields.first()?, fields.get(2)?.parse().ok()?);
            let user = Self {
                uid,
                gid: fields.get(3)?.parse().ok()?,
                name: Some(name.to_owned()),
                home: fields.get(5).map(|home| (*home).to_owned()),
            };
            (name == wanted || number == Some(uid)).then_some(user)
        });
        let mut user = known.or_else(|| {
            number.map(|uid| Self {
                uid,
                gid: uid,
                name: None,
                home: None,
            })
        })?;
        if let Some(group) = group {
            let named = groups.lines().find_map(|line| {
                let fields: Vec<&str> = line.split(':').collect();
                (fields.first() == Some(&group)).then(|| fields.get(2)?.parse().ok())?
            });
            user.gid = named.or_else(|| group.parse().ok())?;
        }
        Some(user)
    }
}

#[cfg(test)]
mod tests;
