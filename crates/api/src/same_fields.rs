//! Both ways between a form of the API and the value of the queue that has the same fields. A field that only one of them has does not
//! compile, so neither can be forgotten.

macro_rules! same_fields {
    ($form:ident, $value:path, { $($field:ident),+ $(,)? }) => {
        impl From<$value> for $form {
            fn from(value: $value) -> Self {
                let $value { $($field),+ } = value;
                Self { $($field: $field.into()),+ }
            }
        }

        impl From<$form> for $value {
            fn from(form: $form) -> Self {
                let $form { $($field),+ } = form;
                Self { $($field: $field.into()),+ }
            }
        }
    };
}
