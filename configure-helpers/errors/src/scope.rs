//! The variables that an expression sees, and what they are parts of.

use std::rc::Rc;

use syn::{Block, Expr, Ident, Item, Member, Pat, Stmt, Type};

use crate::syntax::{diverges, is_name, segments};

/// An expression, the variables that it sees, and the owner that it is in.
#[derive(Clone)]
pub struct At {
    pub e: &'static Expr,
    pub env: Env,
    pub owner: usize,
}

impl At {
    /// Another expression at the same place.
    pub fn with(&self, e: &'static Expr) -> At {
        At { e, ..self.clone() }
    }
}

/// Variables, the innermost first.
pub type Env = Option<Rc<Node>>;

/// A variable, and those around it.
pub struct Node {
    /// `None` for an arm.
    pub name: Option<&'static Ident>,
    pub value: Value,
    pub next: Env,
}

/// What a variable is.
#[derive(Clone)]
pub enum Value {
    /// The part of an expression that these steps lead to.
    Part(At, Vec<Step>),
    /// A part of a parameter of a function or closure: the owner, the position, the type.
    Param(usize, usize, Option<&'static Type>, Vec<Step>),
    /// No variable: the code is in this arm of a `match`.
    Arm(At, &'static syn::ExprMatch, usize),
}

/// A step from a value to a part of it.
#[derive(Clone)]
pub enum Step {
    /// An element of a tuple.
    Index(usize),
    /// A field of a variant, with the name of the variant.
    Variant(String, usize),
    Field(String),
    /// An element of an array, in a loop.
    Each,
}

/// The innermost variable of this name.
pub fn variable<'e>(env: &'e Env, name: &str) -> Option<&'e Node> {
    let mut env = env.as_deref();
    while let Some(node) = env {
        if node.name.is_some_and(|n| n == name) {
            return Some(node);
        }
        env = node.next.as_deref();
    }
    None
}

fn push(name: Option<&'static Ident>, value: Value, env: &mut Env) {
    let next = env.take();
    *env = Some(Rc::new(Node { name, value, next }));
}

/// What an arm of a `match` at this place sees.
pub fn enter_arm(of: &'static syn::ExprMatch, i: usize, at: &At) -> At {
    let (value, mut env) = (at.with(&of.expr), at.env.clone());
    push(None, Value::Arm(value.clone(), of, i), &mut env);
    bind(&of.arms[i].pat, &Value::Part(value, Vec::new()), &mut env);
    At {
        e: &of.arms[i].body,
        env,
        owner: at.owner,
    }
}

/// Adds the variables that `pattern` binds, to which `value` is matched.
pub fn bind(pattern: &'static Pat, value: &Value, env: &mut Env) {
    let step = |step: Step| {
        let mut value = value.clone();
        if let Value::Part(_, steps) | Value::Param(.., steps) = &mut value {
            steps.push(step);
        }
        value
    };
    match pattern {
        Pat::Ident(p) if is_name(&p.ident) => push(Some(&p.ident), value.clone(), env),
        Pat::Type(p) => bind(&p.pat, value, env),
        Pat::Reference(p) => bind(&p.pat, value, env),
        Pat::Paren(p) => bind(&p.pat, value, env),
        Pat::Or(p) => bind(&p.cases[0], value, env),
        Pat::Tuple(p) => {
            for (i, p) in p.elems.iter().enumerate() {
                bind(p, &step(Step::Index(i)), env);
            }
        }
        Pat::TupleStruct(p) => {
            let name = segments(&p.path).pop().unwrap_or_default();
            for (i, p) in p.elems.iter().enumerate() {
                bind(p, &step(Step::Variant(name.clone(), i)), env);
            }
        }
        Pat::Struct(p) => {
            for field in &p.fields {
                let Member::Named(name) = &field.member else {
                    continue;
                };
                bind(&field.pat, &step(Step::Field(name.to_string())), env);
            }
        }
        _ => {}
    }
}

/// The variables that the end of a block sees.
pub fn enter(block: &'static Block, at: &At) -> Env {
    let mut env = at.env.clone();
    for statement in &block.stmts {
        bind_statement(statement, at.owner, &mut env);
    }
    env
}

/// Adds the variables of a statement.
pub fn bind_statement(statement: &'static Stmt, owner: usize, env: &mut Env) {
    let part = |e, env| Value::Part(At { e, env, owner }, Vec::new());
    match statement {
        Stmt::Local(local) => {
            if let Some(init) = &local.init {
                bind(&local.pat, &part(&init.expr, env.clone()), env);
            }
        }
        Stmt::Item(Item::Const(item)) => push(Some(&item.ident), part(&item.expr, None), env),
        _ => {}
    }
}

/// Adds the variables of the conditions `let PATTERN = VALUE` of an `if` or `while`.
pub fn bind_condition(condition: &'static Expr, owner: usize, env: &mut Env) {
    match condition {
        Expr::Let(c) => {
            let (e, outer) = (&*c.expr, env.clone());
            let value = Value::Part(
                At {
                    e,
                    env: outer,
                    owner,
                },
                Vec::new(),
            );
            bind(&c.pat, &value, env);
        }
        Expr::Binary(b) => {
            bind_condition(&b.left, owner, env);
            bind_condition(&b.right, owner, env);
        }
        _ => {}
    }
}

/// The value of a block; `None` if it has none.
pub fn end_of(block: &'static Block, at: &At) -> Option<At> {
    match block.stmts.last()? {
        Stmt::Expr(e, end) if end.is_none() || diverges(e) => {
            let env = enter(block, at);
            Some(At {
                e,
                env,
                owner: at.owner,
            })
        }
        _ => None,
    }
}
