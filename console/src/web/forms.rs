//! Parts of forms.
use maud::{Markup, html};

use super::context::Context;

/// A form with one button that does something. Nothing where actions are not allowed.
pub fn button(
    context: &Context,
    label: &str,
    class: &str,
    back: &str,
    fields: &[(&str, &str)],
) -> Markup {
    form(
        context,
        back,
        fields,
        &html! { button class=(class) { (label) } },
    )
}

/// A form that does something, with inputs. Nothing where actions are not allowed.
pub fn form(context: &Context, back: &str, fields: &[(&str, &str)], inputs: &Markup) -> Markup {
    html! {
        @if context.app.allow_actions {
            form class="act" method="post" action=(context.address("/act")) {
                input type="hidden" name="csrf" value=(context.session.token);
                input type="hidden" name="back" value=(back);
                @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
                (inputs)
            }
        }
    }
}

/// A field with a text, and an example of one.
pub fn input(name: &str, label: &str, value: &str, example: &str) -> Markup {
    html! {
        div class="field" {
            label for=(name) { (label) }
            input id=(name) name=(name) type="text" value=(value) placeholder=(example) autocomplete="off";
        }
    }
}

/// A field with a list, of which none can be chosen.
pub fn choice(name: &str, label: &str, values: &[&str], chosen: &str) -> Markup {
    html! {
        div class="field" {
            label for=(name) { (label) }
            select id=(name) name=(name) {
                option value="" { "any" }
                @for value in values { option value=(value) selected[*value == chosen] { (value) } }
            }
        }
    }
}

/// A text that is long or has lines, as it is.
pub fn text(value: Option<&str>) -> Markup {
    html! { @match value { Some(value) => pre tabindex="0" { (value) }, None => p class="muted" { "None" } } }
}
