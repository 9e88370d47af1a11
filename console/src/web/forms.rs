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

/// A text that is long or has lines, as it is.
pub fn text(value: Option<&str>) -> Markup {
    html! { @match value { Some(value) => pre tabindex="0" { (value) }, None => p class="muted" { "None" } } }
}
