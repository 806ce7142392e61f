//! Image names as container runtimes parse them (the grammar of `distribution/reference`), and a pool's rewrites of
//! them.
//!
//! `swebench/x:1` and `docker.io/swebench/x:1` are the same image, and `ubuntu` is `docker.io/library/ubuntu`. A
//! rewrite that compared texts would miss the published names of most tasks' images.

use grpo_crds::sandbox_pool::ImageRewrite;

/// The registry of a name without a registry.
const DEFAULT_REGISTRY: &str = "docker.io";
const SAME_REGISTRY: [&str; 2] = ["index.docker.io", "registry-1.docker.io"];
/// The default registry's folder for names of one part.
const OFFICIAL: &str = "library";

/// The image's name after the rewrites; the first match wins. Without a match the name is unchanged.
pub fn rewritten(rewrites: &[ImageRewrite], image: &str) -> String {
    let name = Name::of_image(image);
    let rewrite = rewrites.iter().find_map(|rewrite| name.rewritten(rewrite));
    rewrite.unwrap_or_else(|| image.to_owned())
}

/// Registry and path, split into parts; then tag and digest as written.
#[derive(Debug, PartialEq, Eq)]
struct Name<'a> {
    parts: Vec<&'a str>,
    version: &'a str,
}

impl<'a> Name<'a> {
    fn of_image(image: &'a str) -> Self {
        let (path, version) = split_version(image);
        let mut parts = with_registry(path);
        if parts.len() == 2 && parts[0] == DEFAULT_REGISTRY {
            parts.insert(1, OFFICIAL);
        }
        Self { parts, version }
    }

    fn rewritten(&self, rewrite: &ImageRewrite) -> Option<String> {
        let from = rewrite.from.as_str();
        let whole = Name::of_image(from);
        // `a/b:1` also matches `a/b:1@sha256:...`.
        let rest = self.version.strip_prefix(whole.version);
        let rest = rest.filter(|rest| rest.is_empty() || whole.version.is_empty() || rest.starts_with('@'));
        let (taken, version) = match rest.filter(|_| whole.parts == self.parts) {
            // A rewrite of one version names the replacement version.
            Some(_) if !whole.version.is_empty() => (self.parts.len(), ""),
            Some(version) => (self.parts.len(), version),
            None => {
                let prefix = prefix(from)?;
                let taken = self.parts.starts_with(&prefix).then_some(prefix.len())?;
                (taken, self.version)
            }
        };
        let to = Some(rewrite.to.trim_end_matches('/')).filter(|to| !to.is_empty());
        let parts: Vec<&str> = to.into_iter().chain(self.parts[taken..].iter().copied()).collect();
        Some(parts.join("/") + version)
    }
}

/// The leading name parts that a rewrite matches: a registry, or a folder of one. `None` if it is for one image.
fn prefix(from: &str) -> Option<Vec<&str>> {
    let folder = from.trim_end_matches('/');
    // A colon in the last part starts a tag. It starts a port if a slash follows, or if only digits follow in a name of
    // one part.
    let version = split_version(from).1;
    let port = !from.contains('/') && version.len() > 1 && version[1..].bytes().all(|byte| byte.is_ascii_digit());
    let is_image = folder.len() == from.len() && !version.is_empty() && !port;
    let only_registry = !folder.contains('/') && is_registry(folder);
    match (is_image, only_registry) {
        (true, _) => None,
        (false, true) => Some(vec![registry(folder)]),
        (false, false) => Some(with_registry(folder)),
    }
}

fn with_registry(path: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        [first, _, ..] if is_registry(first) => parts[0] = registry(first),
        _ => parts.insert(0, DEFAULT_REGISTRY),
    }
    parts
}

fn is_registry(part: &str) -> bool {
    part.contains(['.', ':']) || part == "localhost"
}

fn registry(name: &str) -> &str {
    if SAME_REGISTRY.contains(&name) {
        DEFAULT_REGISTRY
    } else {
        name
    }
}

/// A name, and `:tag`, `@digest` or both.
fn split_version(image: &str) -> (&str, &str) {
    let path = image.split('@').next().unwrap_or(image);
    let last = path.rfind('/').map_or(0, |slash| slash + 1);
    let end = path[last..].find(':').map_or(path.len(), |colon| last + colon);
    image.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewrite(from: &str, to: &str, image: &str) -> String {
        let rewrite = ImageRewrite {
            from: from.to_owned(),
            to: to.to_owned(),
        };
        rewritten(&[rewrite], image)
    }

    #[test]
    fn an_image_without_a_registry_is_one_of_the_default_registry() {
        for from in ["docker.io/", "docker.io", "index.docker.io/"] {
            for (image, wanted) in [
                ("swebench/x:1", "m/swebench/x:1"),
                ("docker.io/swebench/x:1", "m/swebench/x:1"),
                ("registry-1.docker.io/swebench/x", "m/swebench/x"),
                ("ubuntu", "m/library/ubuntu"),
                ("docker.io/ubuntu:22.04", "m/library/ubuntu:22.04"),
                ("ghcr.io/a/b:1", "ghcr.io/a/b:1"),
                ("localhost/a", "localhost/a"),
                ("host:5000/a:1", "host:5000/a:1"),
            ] {
                assert_eq!(rewrite(from, "m/", image), wanted, "{from}: {image}");
            }
        }
    }

    #[test]
    fn a_rewrite_takes_whole_parts_of_names_and_keeps_tag_and_digest() {
        for (from, to, image, wanted) in [
            ("swebench/", "m.io/s/", "swebench/x:1", "m.io/s/x:1"),
            (
                "swebench",
                "m.io/s",
                "docker.io/swebench/x@sha256:ab",
                "m.io/s/x@sha256:ab",
            ),
            ("swebench", "m.io/s", "swebenchmark/x:1", "swebenchmark/x:1"),
            (
                "host:5000/",
                "other",
                "host:5000/a/b:1@sha256:ab",
                "other/a/b:1@sha256:ab",
            ),
            ("host:5000/a", "other", "host:5000/a/b:1", "other/b:1"),
            ("host:5000", "other", "host:5000/a/b:1", "other/a/b:1"),
            ("redis:7", "m/redis:8", "redis:7", "m/redis:8"),
            ("ghcr.io/a/b", "m/c", "ghcr.io/a/b:1", "m/c:1"),
            ("t", "m/t", "t:1", "m/t:1"),
            ("docker.io/", "", "swebench/x:1", "swebench/x:1"),
        ] {
            assert_eq!(rewrite(from, to, image), wanted, "{from}: {image}");
        }
    }

    #[test]
    fn a_rewrite_of_one_version_is_for_no_other() {
        assert_eq!(rewrite("a/b:1", "m/b:2", "docker.io/a/b:1"), "m/b:2");
        assert_eq!(rewrite("a/b:1", "m/b:2", "a/b:1@sha256:ab"), "m/b:2");
        for other in ["a/b:3", "a/b:12", "a/b"] {
            assert_eq!(rewrite("a/b:1", "m/b:2", other), other);
        }
    }
}
