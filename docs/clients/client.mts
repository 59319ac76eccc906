import createClient from 'openapi-fetch';
import type {paths} from './openapi.d.ts';

const headers = {Authorization: 'Bearer please-choose-your-own'};
const client = createClient<paths>({baseUrl: 'http://localhost:7860', headers});

const {data, error} = await client.POST('/v1/search', {
  body: {queries: [{image_id: 1}], k: 3, include: ['label', 'path']},
});
for (const hit of data?.hits ?? []) console.log(hit.score.toFixed(4), hit.label, hit.path);
if (error) console.log(error.error.code, error.error.message);

const image = await client.GET('/v1/images/{image_id}/preview', {params: {path: {image_id: 1}}, parseAs: 'blob'});
const alike = await client.POST('/v1/search/image', {
  params: {query: {k: 3, include: 'label,path'}},
  body: image.data as unknown as string,
  bodySerializer: photo => photo,
});
for (const hit of alike.data?.hits ?? []) console.log(hit.score.toFixed(4), hit.label, hit.path);
