// What the routes of the API take and answer, by the paths that the page's scripts write: `images/${id}`, below /v1/.

import type {Computing, Failed, paths} from './api';

/** `images/${number}` of '/v1/images/{image_id}'. */
type Filled<Path> = Path extends `${infer Before}{${string}}${infer After}`
  ? `${Before}${number}${Filled<After>}`
  : Path;

type RouteOf<Path, Method> = {
  [Name in keyof paths]: Name extends `/v1/${infer Below}`
    ? Path extends Filled<Below>
      ? paths[Name] extends Record<Method & string, infer Operation>
        ? Operation
        : never
      : never
    : never;
}[keyof paths];

type Json<Operation> = Operation extends {responses: infer Responses}
  ? Responses extends Record<200, {content: {'application/json': infer Answer}}>
    ? Answer
    : Responses extends Record<201, {content: {'application/json': infer Answer}}>
      ? Answer
      : never
  : never;

/** What GET or POST of a path answers when it is done. */
export type AnswerOf<Path, Method> = Exclude<Json<RouteOf<Path, Method>>, Failed | Computing>;

/** The parameters of its address; a list is written with commas, and what is null, false or '' is left out. */
export type ParametersOf<Path, Method> =
  RouteOf<Path, Method> extends {parameters: {query?: infer Query}}
    ? {[Name in keyof Query]?: Query[Name] | string[] | null | false}
    : never;

/** The JSON that it takes. */
export type BodyOf<Path> =
  RouteOf<Path, 'post'> extends {requestBody?: {content: {'application/json': infer Body}}} ? Body : Blob;
