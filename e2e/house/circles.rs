//! Files of a crate that use each other in a circle cannot be understood one at a time.
//!
//! An edge leads from the file of a module to the file that *defines* a used item, through every re-export. Edges
//! between a module and its ancestors do not count: a parent names its children anyway.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use serde_json::Value;
use syn::{Item, visit::Visit};

use crate::{
    modules::{ModulePath, Modules},
    tree::{hold, metadata},
};

/// Circles that CONTRIBUTING.md explains.
const EXPLAINED: usize = 0;

#[test]
fn files_of_a_crate_do_not_use_each_other_in_circles() {
    let metadata = metadata();
    let mut circles = Vec::new();
    let mut targets = 0;
    for package in metadata["packages"].as_array().unwrap() {
        for target in package["targets"].as_array().unwrap() {
            let kinds: Vec<&str> = target["kind"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_str)
                .collect();
            if kinds.iter().any(|kind| ["lib", "bin"].contains(kind)) {
                targets += 1;
                let file = std::path::Path::new(target["src_path"].as_str().unwrap());
                for circle in circles_of(&Modules::read(file)) {
                    circles.push(format!("{}: {}", package["name"], circle.join(", ")));
                }
            }
        }
    }
    assert!(targets > 20, "only {targets} targets were found");
    hold("circles of files", EXPLAINED, &circles);
}

/// Groups of modules that use each other in a circle.
fn circles_of(modules: &Modules) -> Vec<Vec<String>> {
    let mut edges: BTreeMap<ModulePath, BTreeSet<ModulePath>> = BTreeMap::new();
    for (path, module) in &modules.0 {
        let mut paths = Paths::default();
        for item in &module.items {
            paths.visit_item(item);
        }
        let own = file_module(modules, path);
        for used in &paths.0 {
            let Some(target) = modules.resolve(path, used) else {
                continue;
            };
            let target = file_module(modules, &target);
            if !target.starts_with(&own) && !own.starts_with(&target) {
                edges.entry(own.clone()).or_default().insert(target);
            }
        }
    }
    let nodes: Vec<ModulePath> = modules.0.keys().cloned().collect();
    let reached: BTreeMap<&ModulePath, BTreeSet<ModulePath>> =
        nodes.iter().map(|node| (node, reach(node, &edges))).collect();
    let mut left: BTreeSet<&ModulePath> = nodes.iter().collect();
    let mut circles = Vec::new();
    for node in &nodes {
        if !left.contains(node) {
            continue;
        }
        let circle: Vec<&ModulePath> = nodes
            .iter()
            .filter(|other| reached[node].contains(*other) && reached[other].contains(node))
            .collect();
        if circle.len() > 1 {
            circles.push(circle.iter().map(|module| module.join("::")).collect());
        }
        for module in circle {
            left.remove(module);
        }
    }
    circles
}

/// The outermost module in the same file: inline modules belong to their file.
fn file_module(modules: &Modules, path: &ModulePath) -> ModulePath {
    let file = &modules.0[path].file;
    (0..=path.len())
        .map(|length| path[..length].to_vec())
        .find(|outer| modules.0.get(outer).is_some_and(|module| module.file == *file))
        .unwrap_or_else(|| path.clone())
}

fn reach(from: &ModulePath, edges: &BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> BTreeSet<ModulePath> {
    let mut found = BTreeSet::new();
    let mut open = vec![from.clone()];
    while let Some(node) = open.pop() {
        for next in edges.get(&node).into_iter().flatten() {
            if found.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    found
}

/// Every path that an item names, also inside macro calls.
#[derive(Default)]
struct Paths(BTreeSet<Vec<String>>);

impl Paths {
    fn take_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.end(&mut path);
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.end(&mut path);
                    colons = 0;
                    self.take_tokens(group.stream());
                }
                _ => {
                    self.end(&mut path);
                    colons = 0;
                }
            }
        }
        self.end(&mut path);
    }

    fn end(&mut self, path: &mut Vec<String>) {
        if !path.is_empty() {
            self.0.insert(std::mem::take(path));
        }
    }
}

impl<'a> Visit<'a> for Paths {
    fn visit_item(&mut self, item: &'a Item) {
        match item {
            // Its leaves are paths themselves.
            Item::Use(used) => take_use(&used.tree, &mut Vec::new(), &mut self.0),
            item => syn::visit::visit_item(self, item),
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.0
            .insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        self.take_tokens(call.tokens.to_token_stream());
        syn::visit::visit_macro(self, call);
    }
}

fn take_use(tree: &syn::UseTree, before: &mut Vec<String>, paths: &mut BTreeSet<Vec<String>>) {
    match tree {
        syn::UseTree::Path(path) => {
            before.push(path.ident.to_string());
            take_use(&path.tree, before, paths);
            before.pop();
        }
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| take_use(tree, before, paths)),
        syn::UseTree::Name(name) if name.ident != "self" => {
            paths.insert([before.clone(), vec![name.ident.to_string()]].concat());
        }
        syn::UseTree::Rename(name) if name.ident != "self" => {
            paths.insert([before.clone(), vec![name.ident.to_string()]].concat());
        }
        _ => {
            paths.insert(before.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate with these files, in a folder of its own.
    fn circles_in(name: &str, files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let folder = std::env::temp_dir().join(format!("grpo-house-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (file, text) in files {
            std::fs::write(folder.join(file), text).unwrap();
        }
        let circles = circles_of(&Modules::read(&folder.join("lib.rs")));
        std::fs::remove_dir_all(folder).unwrap();
        circles
    }

    #[test]
    fn a_circle_behind_a_re_export_is_found() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::A; pub use b::B;"),
            ("a.rs", "use crate::B; pub struct A(B);"),
            (
                "b.rs",
                "pub struct B; fn f() { let _ = format!(\"{}\", crate::A::x()); }",
            ),
        ];
        assert_eq!(circles_in("hidden", &files), [["a".to_owned(), "b".to_owned()]]);
    }

    #[test]
    fn tests_and_parents_make_no_circle() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::A; pub struct C(b::B);"),
            ("a.rs", "use crate::b::B; pub struct A(B);"),
            (
                "b.rs",
                "pub struct B; fn f(_: crate::C) {} #[cfg(test)] mod tests { use crate::A; }",
            ),
        ];
        assert_eq!(circles_in("none", &files), [[""; 0]; 0]);
    }
}
