/**
 * The part of the Standard Schema specification (https://standardschema.dev) that a task needs. Zod, Valibot,
 * ArkType and others implement it, so the package depends on none of them.
 */
export interface StandardSchema<Input = unknown, Output = Input> {
  readonly '~standard': {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => SchemaResult<Output> | Promise<SchemaResult<Output>>;
    readonly types?: { readonly input: Input; readonly output: Output } | undefined;
  };
}

/** What a schema says about a value. */
export type SchemaResult<Output> =
  { readonly value: Output; readonly issues?: undefined } | { readonly issues: readonly SchemaIssue[] };

/** Why a value does not match. */
export interface SchemaIssue {
  readonly message: string;
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined;
}

/** Returns the value that the schema makes of the input, or the issues in one line. */
export async function validate<Output>(
  schema: StandardSchema<unknown, Output>,
  input: unknown,
): Promise<{ value: Output } | { reason: string }> {
  let result = schema['~standard'].validate(input);
  if (result instanceof Promise) result = await result;
  if (!result.issues) return { value: result.value };
  const reason = result.issues
    .map(({ message, path = [] }) => {
      const keys = path.map((part) => String(typeof part === 'object' ? part.key : part));
      return keys.length > 0 ? `${keys.join('.')}: ${message}` : message;
    })
    .join('; ');
  return { reason };
}
