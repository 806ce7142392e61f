//! The modules of a crate's target, as its files declare them, and the resolution of paths in them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use syn::{Item, UseTree};

/// Names of modules from the crate's root, whose path is empty.
pub type ModulePath = Vec<String>;

/// The declarations of a module, except tests.
pub struct Module {
    pub file: PathBuf,
    pub items: Vec<Item>,
    /// Imported names and the paths behind them, `pub use` or not.
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    defined: BTreeSet<String>,
}

/// All modules of one target.
#[derive(Default)]
pub struct Modules(pub BTreeMap<ModulePath, Module>);

/// More steps through re-exports than this are a circle of `use`.
const DEEPEST: usize = 32;

impl Modules {
    /// Reads a target from its root file, following `mod x;`.
    pub fn read(root: &Path) -> Self {
        let mut modules = Self::default();
        let items = syn::parse_file(&std::fs::read_to_string(root).unwrap()).unwrap().items;
        modules.add(Vec::new(), root, items, root.parent().unwrap().to_owned());
        modules
    }

    /// `children` is the folder of the module's own modules.
    fn add(&mut self, path: ModulePath, file: &Path, items: Vec<Item>, children: PathBuf) {
        let items: Vec<Item> = items.into_iter().filter(|item| !is_test(item)).collect();
        let mut module = Module {
            file: file.to_owned(),
            items: Vec::new(),
            imports: BTreeMap::new(),
            globs: Vec::new(),
            defined: BTreeSet::new(),
        };
        for item in items {
            if let Item::Mod(declared) = &item {
                let name = declared.ident.to_string();
                let child = [path.clone(), vec![name.clone()]].concat();
                match &declared.content {
                    Some((_, inner)) => self.add(child, file, inner.clone(), children.join(&name)),
                    None => self.add_file(child, &children, &name, path_attribute(&declared.attrs)),
                }
                continue;
            }
            if let Item::Use(used) = &item {
                flatten(&used.tree, &mut Vec::new(), &mut module.imports, &mut module.globs);
            }
            if let Some(name) = defined(&item) {
                module.defined.insert(name);
            }
            module.items.push(item);
        }
        self.0.insert(path, module);
    }

    fn add_file(&mut self, path: ModulePath, folder: &Path, name: &str, given: Option<String>) {
        let candidates = match given {
            Some(given) => vec![folder.join(given)],
            None => vec![folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")],
        };
        let file = candidates.iter().find(|file| file.exists());
        let file = file.unwrap_or_else(|| panic!("no file for module {name} in {}", folder.display()));
        let items = syn::parse_file(&std::fs::read_to_string(file).unwrap()).unwrap().items;
        let is_mod = file.file_name().is_some_and(|name| name == "mod.rs");
        let own = file.parent().unwrap().to_owned();
        let children = if is_mod {
            own
        } else {
            own.join(file.file_stem().unwrap())
        };
        self.add(path, file, items, children);
    }

    /// The module that defines the target of a path, through every re-export; `None` if the path leaves the crate.
    pub fn resolve(&self, from: &ModulePath, path: &[String]) -> Option<ModulePath> {
        self.walk(from, path, 0).map(|(module, _)| module)
    }

    /// The defining module, and whether the path's end is that module itself.
    fn walk(&self, from: &ModulePath, path: &[String], depth: usize) -> Option<(ModulePath, bool)> {
        if depth > DEEPEST {
            return None;
        }
        let (mut at, mut rest) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (from.clone(), &path[1..]),
            "super" => {
                let up = path.iter().take_while(|segment| *segment == "super").count();
                (from[..from.len().checked_sub(up)?].to_vec(), &path[up..])
            }
            _ => {
                let (module, is_module) = self.step(from, &path[0], depth)?;
                if !is_module {
                    return Some((module, false));
                }
                (module, &path[1..])
            }
        };
        while let Some((segment, behind)) = rest.split_first() {
            match self.step(&at, segment, depth) {
                Some((module, true)) => at = module,
                Some((module, false)) => return Some((module, false)),
                // An item that this reader does not know, such as a macro's product, counts to the module of the
                // lookup.
                None => return Some((at, false)),
            }
            rest = behind;
        }
        Some((at, true))
    }

    /// Resolves one name in one module.
    fn step(&self, at: &ModulePath, name: &str, depth: usize) -> Option<(ModulePath, bool)> {
        let module = self.0.get(at)?;
        let child = [at.clone(), vec![name.to_owned()]].concat();
        if self.0.contains_key(&child) {
            return Some((child, true));
        }
        if module.defined.contains(name) {
            return Some((at.clone(), false));
        }
        if let Some(path) = module.imports.get(name) {
            return self.walk(at, path, depth + 1);
        }
        module.globs.iter().find_map(|glob| {
            let (from, is_module) = self.walk(at, glob, depth + 1)?;
            if is_module && from != *at {
                self.step(&from, name, depth + 1)
            } else {
                None
            }
        })
    }
}

/// Whether an item exists only in tests.
fn is_test(item: &Item) -> bool {
    let attributes = match item {
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        _ => return false,
    };
    attributes.iter().any(|attribute| {
        let is_cfg = attribute.path().is_ident("cfg");
        is_cfg && quote::quote!(#attribute).to_string().replace(' ', "") == "#[cfg(test)]"
    })
}

fn path_attribute(attributes: &[syn::Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else {
            return None;
        };
        let syn::Expr::Lit(literal) = &pair.value else {
            return None;
        };
        match &literal.lit {
            syn::Lit::Str(text) if pair.path.is_ident("path") => Some(text.value()),
            _ => None,
        }
    })
}

/// The name that an item defines in its module.
fn defined(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

fn flatten(
    tree: &UseTree,
    before: &mut Vec<String>,
    imports: &mut BTreeMap<String, Vec<String>>,
    globs: &mut Vec<Vec<String>>,
) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, imports, globs);
            before.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            imports.insert(before.last().cloned().unwrap_or_default(), before.clone());
        }
        UseTree::Name(name) => {
            let path = [before.clone(), vec![name.ident.to_string()]].concat();
            imports.insert(name.ident.to_string(), path);
        }
        UseTree::Rename(renamed) => {
            let mut path = before.clone();
            if renamed.ident != "self" {
                path.push(renamed.ident.to_string());
            }
            imports.insert(renamed.rename.to_string(), path);
        }
        UseTree::Glob(_) => globs.push(before.clone()),
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, before, imports, globs);
            }
        }
    }
}
